// SPDX-License-Identifier: Apache-2.0
#pragma once
// What rt/runtime.hpp names and does not need to know.

namespace skein::net {
class channel;
class link_endpoint;
class network;
class token;
struct address;
struct frame_view;
} // namespace skein::net

namespace skein::rt {

class worker_source;
struct worker_info;

namespace detail {

class group_handles;
class replies;
struct call_head;
struct space_state;
struct direct_state;
struct direct_target;
struct worker_hello;

[[noreturn]] void no_current_runtime(); // says what to do, in runtime.ipp

} // namespace detail

} // namespace skein::rt
