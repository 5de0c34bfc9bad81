// SPDX-License-Identifier: Apache-2.0
#include <skein/core/type_name.hpp>

#include <catch2/catch_test_macros.hpp>

#include <stdexcept>
#include <vector>

namespace {
struct with_a_name {};
} // namespace

TEST_CASE("a type has the name that people write, of what it is at run time") {
    CHECK(skein::type_name(typeid(int)) == "int");
    const std::runtime_error thrown("x");
    const std::exception& seen = thrown;
    CHECK(skein::type_name(typeid(seen)) == "std::runtime_error");
    CHECK(skein::type_name(typeid(with_a_name)).ends_with("with_a_name"));
}

TEST_CASE("what is no mangled name comes back as it is") {
    CHECK(skein::readable_name("not mangled") == "not mangled");
    CHECK(skein::readable_name("") == "");
}

namespace {
std::string text_giver(int) { return {}; }
template <auto F>
struct names {};
} // namespace

TEST_CASE("a name has no mark of the compiler's") {
    CHECK(skein::readable_name("_Z5countB5cxx11i") == "count(int)");
    CHECK(skein::type_name(typeid(names<&text_giver>)).find("[abi") == std::string::npos);
}
