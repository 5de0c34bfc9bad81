// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page of a head, embedded: what lies in apps/skein/page is compiled in, and read by everybody;
// what it shows comes from /api/, which asks for a key.

#include <skein/net/http_router.hpp>

#include <span>
#include <string_view>

namespace skein_program {

/// One file of the page.
struct page_file {
    std::string_view path; ///< on the server
    std::string_view type, content;
};

/// All of them; made by cmake/EmbedPage.cmake.
[[nodiscard]] std::span<const page_file> page_files() noexcept;

/// A route for each, open to everybody.
inline void add_page(skein::net::http_router& to) {
    for (const page_file& file : page_files()) {
        to.add("GET", std::string(file.path), skein::net::http_right::open,
               [file](skein::net::http_call) {
                   return [](page_file f) -> skein::task<skein::net::http_answer> {
                       skein::wire::http_response out;
                       out.type = f.type;
                       out.body = f.content;
                       co_return out;
                   }(file);
               });
    }
}

} // namespace skein_program
