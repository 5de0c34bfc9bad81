// SPDX-License-Identifier: Apache-2.0
#pragma once
// A count that is one higher while somebody is there.
//
//     const one_more here(waiting_);

#include <skein/core/config.hpp>

namespace skein {

/// Refers to the count, which outlives it. One thread.
template <class Count>
class [[nodiscard]] one_more {
public:
    explicit one_more(Count& of) noexcept : count_(of) { ++count_; }
    one_more(const one_more&) = delete;
    one_more& operator=(const one_more&) = delete;
    ~one_more() { --count_; }

private:
    Count& count_;
};

} // namespace skein
