-- Basic blocks by how often they were entered.
-- :top = 20  How many blocks
SELECT symbol(address) AS block, size, executions
FROM blocks
ORDER BY executions DESC
LIMIT :top
