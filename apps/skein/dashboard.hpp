// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the head answers to browsers and scripts: a page, Ray's job API, an API of its own, and
// metrics for Prometheus.

#include <skein/cluster/head.hpp>
#include <skein/net/token.hpp>

#include <memory>

namespace skein_program {

/// Both must outlive it.
[[nodiscard]] std::shared_ptr<skein::cluster::head_web> make_dashboard(
    skein::cluster::head& of, const skein::net::token& secret);

} // namespace skein_program
