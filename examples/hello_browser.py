"""Hello in a browser, with the JavaScript client library.

Serves hello.html, and the library as it was built from web/src/client. Build it once, with Node.js:

    npm --prefix web ci
    npm --prefix web/src/client run prepack
"""

import argparse
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).parent
CLIENT = HERE.parent / "web/src/client/dist"


class Handler(SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        """Map /client/NAME to a file of the library, and every other path to the page."""
        name = Path(urlsplit(path).path)
        return str(CLIENT / name.name if name.parent.name == "client" else HERE / "hello.html")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8080, help="0: any; default: %(default)s")
    arguments = parser.parse_args()
    if not (CLIENT / "index.js").exists():
        sys.exit(f"{CLIENT} is missing: see --help")
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    print(f"Open http://127.0.0.1:{server.server_port}/?url={arguments.url}", flush=True)
    server.serve_forever()
