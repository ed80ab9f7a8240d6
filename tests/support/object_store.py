"""In-process servers for the protocols of S3 and Google Cloud Storage, and uploads to them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server with an empty bucket for this process's clients; yield the bucket's URL."""
    import pytest
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # Drop the contents of earlier servers of this process.
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        from s3fs import S3FileSystem

        S3FileSystem.clear_instance_cache()  # clients of a server that is gone
        S3FileSystem().mkdir(BUCKET)
        yield f"s3://{BUCKET}"
    server.stop()


@contextmanager
def gs_server() -> Iterator[str]:
    """Run a Google Cloud Storage server, whose emulator supports only JSON over HTTP."""
    import fsspec
    import pytest
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    with pytest.MonkeyPatch.context() as patch:
        # The client reads this when it is imported; its gRPC path would need certificates.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        from gcsfs import GCSFileSystem

        server.start()
        host, port = server._api._httpd.server_address[:2]
        patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}:{port}")
        GCSFileSystem.clear_instance_cache()  # clients of a server that is gone
        yield f"gs://{BUCKET}"
    server.stop()


def upload(folder: Path, url: str) -> str:
    """Upload the files of a folder to a URL, with those of its folders; return the URL."""
    from fsspec.core import url_to_fs

    fs, root = url_to_fs(url)
    for path in folder.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"{root}/{path.relative_to(folder)}", path.read_bytes())
    return url


def contents(url: str) -> dict[str, bytes]:
    """Return the files under a URL by name; empty if there is no such folder."""
    from fsspec.core import url_to_fs

    fs, root = url_to_fs(url)
    fs.invalidate_cache()
    return {path.rsplit("/", 1)[-1]: fs.cat_file(path) for path in fs.find(root)}


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files in a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
