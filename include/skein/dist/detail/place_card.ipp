// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where this process is: host, boot and the namespaces of its container.

#include <skein/core/this_process.hpp>
#include <skein/spmd/rendezvous.hpp>

#include <algorithm>
#include <string>

#include <unistd.h>

namespace skein::dist::detail {

/// A namespace of this process, e.g. "net:[4026531840]".
SKEIN_INLINE std::string namespace_of(const char* path) {
    char text[64] = {};
    return ::readlink(path, text, sizeof text - 1) > 0 ? text : "";
}

SKEIN_INLINE place_card place_card::of(const spmd::rendezvous& world) {
    const std::string boot = boot_id();
    return {world.host() + "|" + boot + "|" + namespace_of("/proc/self/ns/pid"),
            boot + "|" + namespace_of("/proc/self/ns/net")};
}

SKEIN_INLINE std::string place_card::encode() const { return host + "\n" + network; }

SKEIN_INLINE place_card place_card::decode(byte_span bytes) {
    const auto text = as_text(bytes);
    const auto cut = std::min(text.find('\n'), text.size());
    return {std::string(text.substr(0, cut)),
            std::string(text.substr(std::min(cut + 1, text.size())))};
}

} // namespace skein::dist::detail
