"""How to run s3queue: fleets, buckets, stores, olmOCR, and when to use something else. Pages, and no code.

.. include:: fleets.md
.. include:: buckets.md
.. include:: stores.md
.. include:: olmocr.md
.. include:: limits.md
"""
