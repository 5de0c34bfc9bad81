// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/claims.hpp.

#include <skein/core/error.hpp>

#include <utility>

namespace skein::proc {

SKEIN_INLINE claims::claims(shared_memory in) : memory_(std::move(in)) {
    if (memory_.bytes().size() != bytes)
        throw error(errc::malformed,
                    "the memory that a worker shares with its driver has not the size "
                    "of a page of claims");
    // Zeros are what its constructor would make of it, and it has no destructor.
    page_ = reinterpret_cast<page*>(memory_.bytes().data());
}

} // namespace skein::proc
