// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of the page, which are part of this program.

#include <string_view>
#include <vector>

namespace skein_program {

/// One file of the page.
struct page_file {
    const char* path; ///< where a browser asks for it
    const char* type; ///< its Content-Type
    std::string_view text;
};

/// All of them.
[[nodiscard]] std::vector<page_file> page_files();

} // namespace skein_program
