"""The consumer: positions, fetches, groups, and the asyncio face over them."""
