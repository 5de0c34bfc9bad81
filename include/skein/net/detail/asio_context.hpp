// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a real_loop is made of; real_loop.hpp only names it, so that it needs no Asio.

#include <skein/net/asio.hpp>

namespace skein::net::detail {

struct asio_context {
    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
};

} // namespace skein::net::detail
