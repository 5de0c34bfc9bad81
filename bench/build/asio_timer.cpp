// SPDX-License-Identifier: Apache-2.0
// The baseline of examples/010_hello_task.cpp in `scripts/bench build`: a file that includes all of
// Asio and runs one timer.
#include <asio.hpp>

#include <chrono>
#include <cstdio>

int main() {
    asio::io_context context;
    asio::steady_timer timer(context, std::chrono::milliseconds(1));
    timer.async_wait([](const asio::error_code& error) { std::printf("%d\n", error.value()); });
    context.run();
}
