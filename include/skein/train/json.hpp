// SPDX-License-Identifier: Apache-2.0
#pragma once
// The names of wire/json.hpp as training code spells them.

#include <skein/wire/json.hpp>

namespace skein::train {

using skein::dump_json;
using skein::json;
using skein::json_double;
using skein::json_limits;
using skein::json_string;
using skein::json_uint;
using skein::json_uints;
using skein::ordered_json;
using skein::parse_json;

} // namespace skein::train
