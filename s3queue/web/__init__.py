"""The dashboard: an ASGI application to serve, or to mount in a service (extra ``web``)."""

try:
    from s3queue.web._app import dashboard
except ModuleNotFoundError as missing:
    if missing.name is not None and missing.name.partition(".")[0] in ("starlette", "prometheus_client"):
        raise ImportError("s3queue.web needs an extra: pip install 's3queue[web]'") from missing
    raise

__all__ = ["dashboard"]
