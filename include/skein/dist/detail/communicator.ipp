// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the base of all communicators lives.

namespace skein::dist {

SKEIN_INLINE communicator::~communicator() = default;
SKEIN_INLINE std::shared_ptr<const call_record> communicator::calls() const { return nullptr; }

} // namespace skein::dist
