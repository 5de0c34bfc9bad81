// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/unit.hpp>.

namespace skein::train {

SKEIN_INLINE unit_hooks::~unit_hooks() = default;
SKEIN_INLINE unit_mark::~unit_mark() = default;

} // namespace skein::train
