-- Conditional branches of the kernel that always went one way, by how often they were executed.
-- :top = 20  How many branches
SELECT symbol(address) AS branch, max(taken) AS taken, count(*) AS executions
FROM branches
WHERE kind = 'conditional' AND address < 0 AND taken IS NOT NULL
GROUP BY address
HAVING min(taken) = max(taken)
ORDER BY executions DESC
LIMIT :top
