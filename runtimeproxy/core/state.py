"""What survives this process: records and values, CPUs of pods, kernel settings, evictions, leases, audit."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from runtimeproxy.ledger.checkpoint import CheckpointSync

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtimeproxy.core.audit_history import AuditHistory
    from runtimeproxy.core.eviction_history import EvictionHistory
    from runtimeproxy.core.modes import ModeOverrides
    from runtimeproxy.ledger.allocations import NodeAllocations
    from runtimeproxy.ledger.journal import Journal
    from runtimeproxy.ledger.kernel_settings import KernelSettings
    from runtimeproxy.ledger.leased import LeasedClaims
    from runtimeproxy.ledger.pools import NodePools
    from runtimeproxy.ledger.starts import PodStarts

logger = logging.getLogger(__name__)


class SavedState:
    """Reads and writes all of it. Used in the event loop's thread.

    Args:
        checkpoint: Records and values.
        journal: Values that the checkpoint does not have yet.
        allocations: The CPUs that pods have for themselves; None where pools are not computed.
        pools: Katalyst's pools.
        sysctls: None where the daemon leaves them alone.
        modes: Those of policies that operators have set.
        audit: The last audit entries.
        boot_id: Of this boot of the kernel; empty if it is not known.
    """

    def __init__(
        self,
        checkpoint: CheckpointSync,
        journal: Journal,
        allocations: NodeAllocations | None,
        pools: NodePools,
        sysctls: KernelSettings | None,
        history: EvictionHistory,
        leased: LeasedClaims,
        starts: PodStarts,
        modes: ModeOverrides,
        audit: AuditHistory,
        boot_id: str,
    ) -> None:
        self.checkpoint = checkpoint
        self.journal = journal
        self.allocations = allocations
        self.pools = pools
        self.sysctls = sysctls
        self._history = history
        self._leased = leased
        self._starts = starts
        self._modes = modes
        self.audit = audit
        self.boot_id = boot_id

    @property
    def unusable_files(self) -> list[str]:
        """The files that could not be used at the start, each with the reason."""
        savers = (self.allocations, self.pools, self._modes, self._history, self.audit)
        files = (
            *self._leased.files,
            *self._starts.files,
            *(self.sysctls.files if self.sysctls is not None else ()),
            *(each.file for each in savers if each is not None),
        )
        return [text for text in (self.journal.unusable, *(each.unusable for each in files)) if text]

    async def load(self, *, is_successor: bool) -> None:
        """Reads it; to be awaited before anything is decided.

        Args:
            is_successor: Whether the process before this one has handed over its leases.
        """
        await self.audit.load(is_successor=is_successor)
        await self.checkpoint.load()
        await self._load_others()
        await self._leased.load(is_successor=is_successor)

    async def take_back(self) -> None:
        """Reads what a successor that has failed has written; to be awaited before anything is decided."""
        await self.audit.take_back()
        await self.checkpoint.take_back()
        await self._load_others()
        await self._leased.reload()

    async def _load_others(self) -> None:
        if self.allocations is not None:
            await self.allocations.load()
        await self.pools.load()
        await self._history.load()
        await self._starts.load()

    async def flush(self, executor: Executor) -> bool:
        """Writes all changes of the records, and the leases; returns whether the records are on disk now.

        Evictions are refused from now on, until `take_back`.
        """
        self._history.is_handed_over = True
        await self.audit.save(has_ended=True)
        try:
            await asyncio.get_running_loop().run_in_executor(executor, self._leased.hand_over)
        except OSError as error:
            # The successor takes their values from the files.
            logger.warning("leases cannot be handed over: %s", error.strerror)
        return await self.checkpoint.flush()

    async def close(self) -> None:
        await self.audit.save(has_ended=True)
        await self.checkpoint.close()
        self.journal.close()
