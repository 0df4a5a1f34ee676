"""What S3's answers mean to us: by HTTP status, since error codes differ between stores and a HEAD has none.

Codes only tell apart what one status stands for: a missing bucket from a missing key, a wrong clock or old credentials
from a missing permission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from s3queue._errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsExpired,
    NotFound,
    PreconditionFailed,
    StoreError,
    Throttled,
    Unanswered,
    Unsupported,
    WriteConflict,
)
from s3queue.stores._port import Version

__all__ = ["answer_date", "from_refusal", "mapped", "version_of"]

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_SKEWED = {"RequestTimeTooSkewed", "RequestTimeSkewed"}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_BUSY = {"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
#: The body did not arrive, or not as it was sent: nothing to do with what the store supports.
_TIMED_OUT = {"RequestTimeout", "InternalError", "IncompleteBody", "BadDigest"}
_REFUSED = {"InvalidToken"}
_CHECKSUM = ("checksum", "md5", "sha256", "trailer", "aws-chunked")

_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.NoRegionError,
    boto.NoAuthTokenError,
)
_REFRESH = (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError, boto.MetadataRetrievalError)
_NO_ANSWER = (
    boto.HTTPClientError,  # timeouts, closed connections, bodies that broke off
    boto.ConnectionError,  # refused connections, proxies, TLS
    boto.IncompleteReadError,
    boto.ChecksumError,
    boto.FlexibleChecksumError,
    ResponseParserError,
    ConnectionError,
    TimeoutError,
)


def answer_date(headers: Mapping[str, str]) -> float:
    """The store's clock in an answer, POSIX seconds. Raises `Unsupported` if there is none: leases are aged by it."""
    try:
        date = parsedate_to_datetime(headers.get("date") or headers.get("Date") or "")
    except (TypeError, ValueError):
        raise Unsupported("the store's answers have no Date header, by which leases are aged") from None
    # HTTP dates are UTC; one that does not say so must not be read by this host's time zone.
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _remedy(error: Exception) -> str:
    """What to do about a configuration that the SDK does not accept."""
    if isinstance(error, boto.ProfileNotFound):
        return "correct AWS_PROFILE, or add that profile to the AWS configuration"
    if isinstance(error, boto.NoRegionError):
        return "set AWS_REGION"
    return "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and the like"


@contextmanager
def mapped(what: str, where: str) -> Iterator[None]:
    """Turn whatever the SDK raises into our errors; `what` was done at `where`, for the message."""
    try:
        yield
    except boto.ClientError as error:
        raise _from_answer(error, what, where) from error
    except _CREDENTIALS as error:
        raise ConfigurationError(f"{where}: {error}: {_remedy(error)}") from error
    except _REFRESH as error:
        raise CredentialsExpired(f"{where}: the credentials could not be refreshed ({type(error).__name__})") from error
    except (boto.ParamValidationError, boto.InvalidRegionError, ValueError) as error:
        raise ConfigurationError(f"{where}: {what}: {_line(error)}") from error
    except _NO_ANSWER as error:
        raise Unanswered(f"{where}: no answer to {what} ({type(error).__name__}: {_line(error)})") from error
    except KeyError as error:
        # Every S3 tells it: this answer is somebody else's, a proxy's or a portal's.
        raise Unanswered(f"{where}: the answer to {what} has no {error}: is something before the store?") from error
    except boto.BotoCoreError as error:
        # What is left never left this machine: settings and arguments that the SDK refuses.
        raise ConfigurationError(f"{where}: {what}: {_line(error)}") from error


def _from_answer(error: boto.ClientError, what: str, where: str) -> Exception:
    details: Mapping[str, Any] = error.response.get("Error", {})
    metadata: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode") or 0)
    headers = metadata.get("HTTPHeaders", {})
    return from_refusal(status, str(details.get("Code", "")), str(details.get("Message", "")), headers, what, where)


def from_refusal(status: int, code: str, message: str, headers: Mapping[str, str], what: str, where: str) -> Exception:
    """Our error for an answer that is not a success; `what` was asked at `where`."""
    text = f"{where}: {what}: {status} {code} {message[:300]}".rstrip()
    special = _by_code(code, text, where)
    if special is not None:
        return special
    if status in (301, 307) or code in _REGION:
        region = headers.get("x-amz-bucket-region") or "the bucket's own"
        return ConfigurationError(f"{text}: set the region (AWS_REGION) to {region}, or correct the endpoint")
    kind = _by_status(status)
    if kind is StoreError and any(word in f"{code} {text}".lower() for word in _CHECKSUM):
        return Unsupported(f"{text}: the store rejects the SDK's checksums; set request_checksum_calculation")
    return kind(text, date=_date_of(headers))


def version_of(etag: str) -> Version:
    """The version that an ETag names, whatever its spelling. Raises `Unsupported`, and `KeyError` for none."""
    if etag.startswith("W/"):
        raise Unsupported(f"the store, or a proxy before it, gives weak ETags ({etag}), which no condition can use")
    if not etag.strip('"'):
        raise KeyError("ETag")
    return Version(etag.strip('"'))


def _by_code(code: str, text: str, where: str) -> Exception | None:
    if code in _EXPIRED:
        return CredentialsExpired(f"{text}: renew the credentials")
    if code in _SKEWED:
        return ConfigurationError(f"{text}: this machine's clock is wrong by more than 15 minutes; set it right")
    if code == "NoSuchBucket":
        return ConfigurationError(f"{where}: there is no such bucket: create it, or correct the name and the endpoint")
    if code in _BUSY:
        return Throttled(text)
    if code in _TIMED_OUT:
        return Unanswered(text)
    if code in _REFUSED:
        return AccessDenied(text)
    return None


def _by_status(status: int) -> type[StoreError]:
    match status:
        case 304 | 412:
            return PreconditionFailed
        case 404:
            return NotFound
        case 409:
            return WriteConflict
        case 401 | 403:
            return AccessDenied
        case 429 | 503:
            return Throttled
        case 405 | 501:
            return Unsupported
        case _ if status >= 500 or status == 408:
            return Unanswered
    return StoreError


def _date_of(headers: Mapping[str, str]) -> float | None:
    try:
        return answer_date(headers)
    except Unsupported:
        return None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
