// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the base of all communicators lives.

namespace skein::dist {

SKEIN_INLINE communicator::~communicator() = default;

} // namespace skein::dist
