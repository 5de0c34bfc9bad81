// SPDX-License-Identifier: Apache-2.0
// take(n) counts samples: behind a filter it would not give n rows, as it does elsewhere.
// expect: take(n) counts samples of the source
#include <skein/data/pipeline.hpp>

namespace data = skein::data;

bool is_odd(std::int64_t i) { return i % 2 != 0; }

#if defined(SKEIN_COMPILES)
auto plan() { return data::range(100) | data::take(10) | data::filter<&is_odd>(); }
#else
auto plan() { return data::range(100) | data::filter<&is_odd>() | data::take(10); }
#endif
auto made = plan();
