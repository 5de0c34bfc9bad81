// SPDX-License-Identifier: Apache-2.0
// label: cuda
#include <skein/dist/cuda_runtime.hpp>

#include "support/device_libraries.hpp"
#include "support/error_of.hpp"

#include <catch2/catch_test_macros.hpp>

#include <cstdlib>
#include <string>

using namespace skein;
using namespace skein::dist;

namespace cuda_runtime_test {

/// A runtime that answers every question after a device in one way.
cuda_runtime answering(cuda_result outcome, int count, int driver) {
    cuda_runtime cuda;
    cuda.source = "a test's own";
    cuda.runtime_version = [](int* to) { return *to = 13020, cuda_result::success; };
    cuda.driver_version = [driver](int* to) { return *to = driver, cuda_result::success; };
    cuda.device_count = [=](int* to) { return *to = count, outcome; };
    cuda.error_text = [](cuda_result) { return "the words of CUDA"; };
    cuda.last_error = [] { return cuda_result::success; };
    cuda.memory_info = [](std::size_t* free, std::size_t* total) {
        *free = std::size_t{3} << 20;
        *total = std::size_t{80} << 20;
        return cuda_result::success;
    };
    return cuda;
}

/// CUDA_VISIBLE_DEVICES while it lives.
class visible {
public:
    explicit visible(const char* value) {
        if (const char* const old = std::getenv(name)) before_ = old, had_ = true;
        value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
    }
    visible(const visible&) = delete;
    visible& operator=(const visible&) = delete;
    ~visible() { had_ ? ::setenv(name, before_.c_str(), 1) : ::unsetenv(name); }

private:
    static constexpr const char* name = "CUDA_VISIBLE_DEVICES";
    std::string before_;
    bool had_ = false;
};

bool says(const error& e, const std::string& part) {
    return std::string(e.what()).find(part) != std::string::npos;
}

int version_11(int* to) { return *to = 11080, 0; }
void* of_cuda_11(const char*) { return reinterpret_cast<void*>(&version_11); }

} // namespace cuda_runtime_test

TEST_CASE("without a driver, a device or a right CUDA_VISIBLE_DEVICES the error says which") {
    using namespace cuda_runtime_test;
    const visible unset(nullptr);
    const auto none = cuda_devices(answering(cuda_result::insufficient_driver, 0, 0));
    REQUIRE(!none);
    CHECK(none.error().code() == errc::not_supported);
    CHECK(says(none.error(), "this machine has no driver of NVIDIA"));
    CHECK(says(none.error(), "a test's own: the words of CUDA (error 35 of CUDA)"));

    const auto old = cuda_devices(answering(cuda_result::insufficient_driver, 0, 12040));
    REQUIRE(!old);
    CHECK(says(old.error(), "the driver is for CUDA 12.4, the runtime is 13.2"));

    const auto no_device = cuda_devices(answering(cuda_result::no_device, 0, 13020));
    REQUIRE(!no_device);
    CHECK(says(no_device.error(), "see what nvidia-smi shows"));
    {
        const visible empty("");
        const auto hidden = cuda_devices(answering(cuda_result::no_device, 0, 13020));
        REQUIRE(!hidden);
        CHECK(says(hidden.error(), "CUDA_VISIBLE_DEVICES is empty, which hides all devices"));
    }
    const visible wrong("7");
    const auto hidden = cuda_devices(answering(cuda_result::success, 0, 13020));
    REQUIRE(!hidden);
    CHECK(says(hidden.error(), "CUDA_VISIBLE_DEVICES=7: check that it names devices"));
}

TEST_CASE("a device beyond those that the process sees is refused by its number") {
    using namespace cuda_runtime_test;
    const visible unset(nullptr);
    const auto two = answering(cuda_result::success, 2, 13020);
    CHECK_NOTHROW(require_device(two, 1));
    const error why = test::error_of([&] { require_device(two, 2); });
    CHECK(why.code() == errc::invalid_argument);
    CHECK(says(why, "no device cuda:2: this process sees 2"));
}

TEST_CASE("a full device says what it has") {
    using namespace cuda_runtime_test;
    const auto cuda = answering(cuda_result::success, 1, 13020);
    const error why =
        test::error_of([&] { cuda_check(cuda, cuda_result::out_of_memory, "9 MiB for a test"); });
    CHECK(why.code() == errc::exhausted);
    CHECK(says(why, "cannot make 9 MiB for a test"));
    CHECK(says(why, "3 MiB free of 80 MiB"));
    CHECK(test::error_of([&] { cuda_check(cuda, cuda_result::launch_failure, "x"); }).code() ==
          errc::io);
}

TEST_CASE("a runtime that is not there, is none, or is old is refused with what to do") {
    using namespace cuda_runtime_test;
    const auto missing = load_cuda_runtime({"libskein-no-cudart.so.13"});
    REQUIRE(!missing);
    CHECK(missing.error().code() == errc::not_found);
    CHECK(says(missing.error(), "looked for libskein-no-cudart.so.13"));
    CHECK(says(missing.error(), "LD_LIBRARY_PATH"));
    const auto other = load_cuda_runtime({"libm.so.6"});
    REQUIRE(!other);
    CHECK(other.error().code() == errc::not_supported);
    CHECK(says(other.error(), "it lacks cudaRuntimeGetVersion"));
    const auto old = cuda_runtime_from(&of_cuda_11, "libcudart.so.11");
    REQUIRE(!old);
    CHECK(says(old.error(), "CUDA 11.8 of libcudart.so.11, which is older than 12.0"));
}

TEST_CASE("the real runtime counts its devices, or says why it has none") {
    const auto cuda = load_cuda_runtime();
    if (!cuda) SKIP(cuda.error().what());
    int version = 0;
    CHECK(cuda->runtime_version(&version) == cuda_result::success);
    CHECK(version >= 12000);
    const auto count = cuda_devices(*cuda);
    if (!count) {
        CHECK(count.error().code() == errc::not_supported);
        SKIP(count.error().what());
    }
    CHECK(*count > 0);
}
