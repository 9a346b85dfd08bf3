-- Which interrupts came, how often, what they cost, and which tasks they hit.
-- :top = 20  How many rows
SELECT interrupt, task, count(*) AS interrupts, sum(instructions) AS instructions,
       max(instructions) AS most
FROM interrupts
GROUP BY interrupt, task
ORDER BY instructions DESC
LIMIT :top
