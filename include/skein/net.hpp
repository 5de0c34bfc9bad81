// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer net.
// Written by scripts/check_mirror.py --write.

#include <skein/net/acceptor.hpp>
#include <skein/net/address.hpp>
#include <skein/net/channel.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/far_disk.hpp>
#include <skein/net/folder_server.hpp>
#include <skein/net/frame.hpp>
#include <skein/net/handshake.hpp>
#include <skein/net/key_name.hpp>
#include <skein/net/limits.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/message.hpp>
#include <skein/net/network.hpp>
#include <skein/net/offload.hpp>
#include <skein/net/options.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/request_budget.hpp>
#include <skein/net/requests.hpp>
#include <skein/net/socket_pair.hpp>
#include <skein/net/stop_watch.hpp>
#include <skein/net/stream.hpp>
#include <skein/net/system_error.hpp>
#include <skein/net/token.hpp>
