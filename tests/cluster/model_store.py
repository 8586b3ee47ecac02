"""A store in a dict, for tests of what the controller writes: it holds nodes and has no engine behind it."""

from __future__ import annotations

from klamm.coordination.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    parent_of,
)


class ModelStore:
    def __init__(self):
        self.nodes = {"/": Node(b"", 0, 0, 0)}
        self.revision = 0

    async def get(self, path):
        return self._node(path)

    async def list(self, path):
        self._node(path)
        return sorted(
            each.rpartition("/")[2] for each in self.nodes if each != "/" and parent_of(each) == path
        )

    async def sync(self): ...

    async def txn(self, operations):
        return self.apply(operations)

    def apply(self, operations):
        before = dict(self.nodes)
        self.revision += 1
        try:
            for operation in operations:
                self._apply_one(operation)
        except Exception:
            self.nodes = before
            raise
        return self.revision

    def _node(self, path):
        if path not in self.nodes:
            raise NoNode(path)
        return self.nodes[path]

    def _apply_one(self, operation):
        path = operation.path
        if isinstance(operation, Create):
            self._node(parent_of(path))
            if path in self.nodes:
                raise NodeExists(path)
            self.nodes[path] = Node(operation.value, 0, self.revision, 0)
            return
        node = self._node(path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{path} has version {node.version}, not {operation.version}")
        if isinstance(operation, Delete):
            if any(each != "/" and parent_of(each) == path for each in self.nodes):
                raise NotEmpty(path)
            del self.nodes[path]
        elif not isinstance(operation, Check):
            self.nodes[path] = node._replace(value=operation.value, version=node.version + 1)
