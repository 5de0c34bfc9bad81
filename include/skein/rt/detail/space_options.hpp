// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options of a detached actor while its namespace is looked for: they outlive the expression that named them.

#include <skein/core/error.hpp>
#include <skein/rt/actor_options.hpp>

#include <string>

namespace skein::rt::detail {

/// A copy whose texts are its own.
struct space_options {
    explicit space_options(const actor_options& given)
        : how(given), name(given.name), space(given.space), resources(given.resources),
          env(given.env), cwd(given.cwd), on(given.on.text()) {}

    ///   errors  invalid_argument
    void check() const {
        if (!how.detached)
            throw error(errc::invalid_argument,
                        "an actor with a .space is to be .detached = true: a namespace holds "
                        "actors that outlive their program")
                .with_hint("names of other actors belong to their program: leave .space away");
        if (space.empty() || name.empty())
            throw error(errc::invalid_argument,
                        "a detached actor needs a .name and a .space: nobody would find it again");
        if (how.on.is_group() || how.on.is_named_group())
            throw error(errc::not_supported,
                        "not supported: a detached actor in a placement group, "
                        "which ends with its program")
                .with_hint("ask for .cpus, .gpus, .resources, or a node");
    }
    /// Views of this object.
    [[nodiscard]] actor_options options() const {
        auto out = how;
        out.name = name;
        out.space = space;
        out.resources = resources;
        out.env = env;
        out.cwd = cwd;
        out.on = how.on.with_text(on);
        return out;
    }

    actor_options how;
    std::string name, space, resources, env, cwd, on;
};

} // namespace skein::rt::detail
