"""An S3 server for examples and tests: moto, which keeps objects in memory, behind a counter."""

import threading

import boto3
from botocore.config import Config
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

KEY, SECRET = "example-key", "example-secret"


class _Quiet(MotoRequestHandler):
    def log_request(self, *_arguments):
        pass


class CountingS3:
    """A server at `url` until it is closed.

    It counts the requests, and the bytes of bodies that it sends. moto's objects belong to the
    process: two servers of one process have the same ones.
    """

    def __init__(self):
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._counts = {"gets": 0, "heads": 0, "bytes": 0}
        s3_backends.reset()
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _answer(self, environ, start):
        with self._lock:
            self._counts["gets"] += environ["REQUEST_METHOD"] == "GET"
            self._counts["heads"] += environ["REQUEST_METHOD"] == "HEAD"
        parts = self._app(environ, start)
        try:
            for part in parts:
                with self._lock:
                    self._counts["bytes"] += len(part)
                yield part
        finally:
            getattr(parts, "close", lambda: None)()

    def counts(self):
        """Return the counts since the last call, and begin anew."""
        with self._lock:
            counts = dict(self._counts)
            self._counts.update(dict.fromkeys(counts, 0))
        return counts

    def client(self):
        """A client for making buckets and objects."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(retries={"max_attempts": 1}),
        )

    def options(self):
        """Options of `s3fs` for this server."""
        return {"endpoint_url": self.url, "key": KEY, "secret": SECRET}

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()
