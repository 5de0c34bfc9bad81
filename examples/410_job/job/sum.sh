#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The job. It runs in its folder, on some node; what is in the folder has come along.
set -eu
echo "job $SKEIN_JOB, attempt $SKEIN_JOB_ATTEMPT"
awk '/^[0-9]/ { n += 1; sum += $1 } END { print n " numbers, " sum " together" }' numbers.txt
