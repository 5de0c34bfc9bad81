// SPDX-License-Identifier: Apache-2.0
// label: cuda
#include <skein/dist/library.hpp>

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <string>

using namespace skein;
using namespace skein::dist;

namespace library_test {

struct two_functions {
    std::function<double(double)> root;
    std::function<int(int)> unheard_of;

    template <class Table, class Visitor>
    static void each(Table& t, Visitor visit) {
        visit("sqrt", t.root);
        visit("skein_unheard_of", t.unheard_of);
    }
};

} // namespace library_test

TEST_CASE("a library is found by the first of its names that there is") {
    const auto found = shared_library::find({"libskein-is-not-there.so.7", "libm.so.6"});
    REQUIRE(found);
    CHECK(found->path().find("libm.so.6") != std::string::npos);
    CHECK(found->symbol("cos") != nullptr);
    CHECK(found->symbol("skein_unheard_of") == nullptr);
    CHECK(shared_library::find({"libm.so.6"})->was_loaded());
}

TEST_CASE("who finds no library reads which names were tried, and why not") {
    const auto found = shared_library::find({"libskein-a.so.1", "/nowhere/libskein-b.so"});
    REQUIRE(!found);
    CHECK(found.error().code() == errc::not_found);
    const std::string text = found.error().what();
    CHECK(text.find("libskein-a.so.1 or /nowhere/libskein-b.so") != std::string::npos);
    CHECK(text.find("/nowhere/libskein-b.so: cannot open") != std::string::npos);
}

TEST_CASE("a table is filled by name, and says what is missing") {
    const auto found = shared_library::find({"libm.so.6"});
    REQUIRE(found);
    library_test::two_functions table;
    const auto missing = fill_table(table, [&](const char* name) { return found->symbol(name); });
    CHECK(missing == std::vector<std::string>{"skein_unheard_of"});
    CHECK(table.root(9.0) == 3.0);
    CHECK(!table.unheard_of);
}
