"""`paperflows ui`: the two web pages, on this machine's loopback address alone."""

import signal
import socket
import subprocess
import sys
import time

from tasks.errors import UserError
from tasks.project import Project

HOST = "127.0.0.1"


def serve_uis(project: Project, mlflow_port: int, prefect_port: int) -> None:
    """Start both servers and wait; when one ends, or at Ctrl-C, both are ended.

    Raises UserError if a port is taken."""
    from tasks.tracking import prepare_store

    for name, port in (("MLflow", mlflow_port), ("Prefect", prefect_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                raise UserError(f"port {port} is taken: choose another with --{name.lower()}-port") from None
    mlflow = mlflow_command(prepare_store(project), mlflow_port)
    prefect = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(prefect_port)]
    servers = [subprocess.Popen(words, cwd=project.root) for words in (mlflow, prefect)]
    print(f"MLflow   http://{HOST}:{mlflow_port}\nPrefect  http://{HOST}:{prefect_port}\nCtrl-C ends both", flush=True)
    # A plain `kill` ends them too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while all(server.poll() is None for server in servers):
            time.sleep(0.5)
    except KeyboardInterrupt:
        print("ending")
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(timeout=20)


def mlflow_command(uri: str, port: int) -> list[str]:
    """The command that shows the store at `uri`."""
    return [
        sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port),
        *(["--backend-store-uri", uri] if not uri.startswith("http") else []),
        "--workers", "1",
    ]  # fmt: skip
