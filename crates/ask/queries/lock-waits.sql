-- Locks by the cycles for which CPUs and tasks waited. Needs data accesses.
-- :top = 20  How many locks
SELECT kind, class, name, locks, acquisitions, contended, round(wait_cycles) AS wait_cycles,
       round(hold_cycles) AS hold_cycles
FROM locks
ORDER BY wait_cycles DESC, acquisitions DESC
LIMIT :top
