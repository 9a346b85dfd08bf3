# The longest sequence of Collatz below a limit.
n=1 best=0
while [ $n -lt 150 ]; do
    steps=0 m=$n
    while [ $m -ne 1 ]; do
        if [ $((m % 2)) -eq 0 ]; then m=$((m / 2)); else m=$((3 * m + 1)); fi
        steps=$((steps + 1))
    done
    if [ $steps -gt $best ]; then best=$steps; fi
    n=$((n + 1))
done
echo $best
