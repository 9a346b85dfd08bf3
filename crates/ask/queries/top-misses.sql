-- Misses of the first level by function and cause. Needs data accesses and a machine.
-- :top = 20  How many rows
SELECT function, kind, cause, count(*) AS misses, count(l2_cause) AS l2_misses
FROM misses
GROUP BY function, kind, cause
ORDER BY misses DESC
LIMIT :top
