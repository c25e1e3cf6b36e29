"""An HTTP server for tests whose clients may give up before they have the whole answer."""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class PatientServer(ThreadingHTTPServer):
    """A server that says nothing of a client that has gone.

    A thread may notice it much later, and its traceback would be in the captured output of another test.
    """

    request_queue_size = 128  # the default of 5 is less than the threads of one command that connect at once
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
