-- Data structures by their misses. Needs data accesses and a machine.
-- :top = 20  How many rows
SELECT class, structure, count(*) AS misses, count(l2_cause) AS l2_misses,
       count(DISTINCT physical / 64) AS lines
FROM misses
WHERE kind <> 'fetch'
GROUP BY class, structure
ORDER BY misses DESC
LIMIT :top
