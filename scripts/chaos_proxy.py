#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that breaks what goes through it, for scripts/chaos.

    chaos_proxy.py HOST HEAD_PORT PORT...

Each PORT leads to HOST:HEAD_PORT. Orders are JSON lines on standard input, answers JSON lines on standard output:
    {"port": 7201, "do": "cut", "how": "reset", "which": 0.4}    one of the connections: reset, close, or half: the head does
                                                                 not hear of it for two seconds
    {"port": 7201, "do": "delay", "seconds": 2, "each": 0.2}     each piece of data, for a while
    {"port": 7201, "do": "pause", "seconds": 3}                  nothing goes through, then all of it
It ends with its input.
"""
import asyncio
import json
import socket
import struct
import sys

HALF_OPEN_SECONDS = 2.0


class Gate:
    """What holds for all connections of one port."""

    def __init__(self):
        self.connections = []
        self.delays = []     # of the orders that hold now
        self.pauses = 0
        self.open = asyncio.Event()
        self.open.set()

    async def delay(self, seconds, each):
        self.delays.append(each)
        await asyncio.sleep(seconds)
        self.delays.remove(each)

    async def pause(self, seconds):
        self.pauses += 1
        self.open.clear()
        await asyncio.sleep(seconds)
        self.pauses -= 1
        if self.pauses == 0:
            self.open.set()


def end(writer, hard):
    try:
        if hard:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass    # it has ended already
    writer.transport.abort()


async def pump(gate, reader, writer):
    try:
        while data := await reader.read(1 << 16):
            await gate.open.wait()
            if gate.delays:
                await asyncio.sleep(max(gate.delays))
            writer.write(data)
            await writer.drain()
        await gate.open.wait()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def serve(gate, host, head_port, reader, writer):
    try:
        await gate.open.wait()
        up_reader, up_writer = await asyncio.open_connection(host, head_port)
    except OSError:    # no head: the peer hears so as from its host
        end(writer, True)
        return
    mine = (writer, up_writer)
    gate.connections.append(mine)
    await asyncio.gather(pump(gate, reader, up_writer), pump(gate, up_reader, writer))
    gate.connections.remove(mine)
    for each in mine:
        each.transport.abort()


async def cut(gate, how, which):
    if not gate.connections:
        return False
    peer, head = gate.connections[int(which * len(gate.connections))]
    end(peer, how != "close")
    if how == "half":
        await asyncio.sleep(HALF_OPEN_SECONDS)
    end(head, how != "close")
    return True


async def obey(gates, order):
    gate = gates[order["port"]]
    if order["do"] == "cut":
        return await cut(gate, order["how"], order["which"])
    if order["do"] == "delay":
        await gate.delay(order["seconds"], order["each"])
    else:
        await gate.pause(order["seconds"])
    return True


async def main(host, head_port, ports):
    gates = {port: Gate() for port in ports}
    servers = [await asyncio.start_server(lambda r, w, gate=gate: serve(gate, host, head_port, r, w), host, port) for port, gate in gates.items()]
    print(json.dumps({"listens": ports}), flush=True)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    running = set()

    async def run(order):
        print(json.dumps({"id": order["id"], "done": await obey(gates, order)}), flush=True)

    while line := await orders.readline():
        task = asyncio.create_task(run(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
