// SPDX-License-Identifier: Apache-2.0
#pragma once
// What adaptdl 0.2.11 makes of the same numbers; the rows are in adaptdl_numbers.inc.

namespace goodput_test {

struct searched {
    double parameters[7], sqr, var;
    int first, nodes, ranks, most, micro_least, micro_most;
    bool accumulation;
    double goodput;
    int micro, accumulated;
};
struct objective {
    double parameters[7];
    struct row {
        int nodes, ranks, micro;
        double micro_seconds, last_seconds;
    } rows[4];
    double value;
};
struct ruled {
    double scale, sqr, var, progress;
    int epochs, samples, first;
    double rates[5]; // adascale, adamscale, linear, sqrt, legw
};

#include "adaptdl_numbers.inc"

} // namespace goodput_test
