-- Functions that never ran, the largest first.
-- :top = 20  How many functions
SELECT symbol, size, section
FROM functions
WHERE executions = 0 AND instructions = 0
ORDER BY size DESC
LIMIT :top
