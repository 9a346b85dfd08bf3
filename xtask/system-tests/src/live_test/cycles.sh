#!/bin/sh
# A large group, installed and undone again and again in ever new orders, while every CPU reads,
# writes, and receives.
. /kl/prelude.sh
serve
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
. /kl/endure.sh
endure "$(cat /kl/cycles)" "$(nproc)" 20
exit 0
