-- Who calls a function, how often, and what these calls cost.
-- :function  The function
SELECT coalesce(caller, '(first of its service)') AS caller, count(*) AS calls,
       sum(inclusive) AS inclusive
FROM calls
WHERE function = :function
GROUP BY 1
ORDER BY calls DESC
