// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options of a detached actor while its namespace is looked for: they outlive the expression
// that named them.

#include <skein/core/error.hpp>
#include <skein/rt/actor_options.hpp>

#include <string>

namespace skein::rt::detail {

/// A copy whose texts are its own; a class with a constructor, for g++ 12.
struct space_options {
    explicit space_options(const actor_options& given) : how(given) {}

    ///   errors  invalid_argument
    void check() const {
        if (!how->detached)
            throw error(errc::invalid_argument,
                        "an actor with a .space is to be .detached = true: a namespace holds "
                        "actors that outlive their program")
                .with_hint("names of other actors belong to their program: leave .space away");
        if (how->space.empty() || how->name.empty())
            throw error(errc::invalid_argument,
                        "a detached actor needs a .name and a .space: nobody would find it again");
        if (how->on.is_group() || how->on.is_named_group())
            throw error(errc::not_supported,
                        "not supported: a detached actor in a placement group, "
                        "which ends with its program")
                .with_hint("ask for .cpus, .gpus, .resources, or a node");
    }
    owned_options<actor_options> how;
};

} // namespace skein::rt::detail
