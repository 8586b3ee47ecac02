"""The plain, thread-safe faces: the asyncio clients on a loop of their own in a thread of their own."""
