-- Indirect calls and jumps of the kernel that always went to one place: candidates for static
-- calls. In a guest with retpolines a thunk executes them, and there are none.
-- :top = 20  How many branches
SELECT symbol(address) AS branch, symbol(max(target)) AS target, count(*) AS executions
FROM branches
WHERE kind IN ('indirect call', 'indirect jump') AND address < 0 AND target IS NOT NULL
GROUP BY address
HAVING min(target) = max(target)
ORDER BY executions DESC
LIMIT :top
