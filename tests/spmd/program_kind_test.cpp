// SPDX-License-Identifier: Apache-2.0
#include <skein/spmd/program_kind.hpp>
#include <tests/support/temporary_folder.hpp>

#include <fstream>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace program_kind_test {

using namespace skein;

namespace {

std::string file_of(const test::temporary_folder& in, const std::string& text) {
    auto path = in.path + "/program";
    std::ofstream(path, std::ios::binary) << text;
    return path;
}

} // namespace

TEST_CASE("the file of a program shows that it is elastic") {
    const test::temporary_folder folder;
    const std::string begin = "\x7f"
                              "ELF and more ",
                      mark = spmd::elastic_mark;
    CHECK(spmd::shows_elastic(file_of(folder, begin + mark)));
    CHECK(spmd::shows_elastic(file_of(folder, begin + mark.substr(0, 30) + mark + " and more")));
    CHECK_FALSE(spmd::shows_elastic(file_of(folder, begin + mark.substr(0, mark.size() - 1))));
    CHECK_FALSE(spmd::shows_elastic(file_of(folder, "#!/bin/sh\n# " + mark)));
    CHECK_FALSE(spmd::shows_elastic(file_of(folder, "")));
    CHECK_FALSE(spmd::shows_elastic(folder.path + "/nothing"));
    CHECK_FALSE(spmd::shows_elastic(folder.path));
}

} // namespace program_kind_test
