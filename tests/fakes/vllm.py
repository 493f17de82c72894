"""A vLLM that spans nodes and serves nothing: it only does what its launcher waits for.

The head listens for its members on --master-port and is well once they are there. It is
as blind as the real one at its worst: a member that dies changes nothing in what it
says, and a member whose head dies stays where it is.
"""

import argparse
import select
import socket
import sys

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
NOT_YET = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("--master-port", type=int, required=True)
    return parser.parse_known_args()[0]


def listening(host: str, port: int) -> socket.socket:
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind((host, port))
    door.listen(16)
    return door


def head(options: argparse.Namespace) -> None:
    doors = {
        "master": listening(options.master_addr, options.master_port),
        "api": listening(options.host, options.port),
    }
    clients: list[socket.socket] = []
    ranks: set[bytes] = set()
    while True:
        ready, _, _ = select.select([*doors.values(), *clients], [], [])
        for one in ready:
            if one in doors.values():
                clients.append(one.accept()[0])
                continue
            try:
                said = one.recv(4096)
            except OSError:
                said = b""
            if not said:  # a member that is gone, or somebody who only knocked
                clients.remove(one)
                one.close()
            elif said.startswith(b"rank "):
                ranks.add(said)
            else:
                is_well = len(ranks) >= options.nnodes - 1
                one.sendall(OK if is_well else NOT_YET)


def member(options: argparse.Namespace) -> None:
    with socket.create_connection((options.master_addr, options.master_port)) as one:
        one.sendall(b"rank %d" % options.node_rank)
        select.select([], [], [])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        del sys.argv[1]
    chosen = arguments()
    member(chosen) if chosen.headless else head(chosen)
