# SPDX-License-Identifier: Apache-2.0
# An overlay port inside skein's sources: it packages the checkout it lies in. Header-only form.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release)   # headers are the same in both configurations

set(skein_torch OFF)
if("train" IN_LIST FEATURES)
  set(skein_torch ON)
endif()
set(skein_images OFF)
if("images" IN_LIST FEATURES)
  set(skein_images ON)
endif()
set(skein_etcd OFF)
if("etcd" IN_LIST FEATURES)
  set(skein_etcd ON)
endif()
set(skein_http OFF)
if("http" IN_LIST FEATURES)
  set(skein_http ON)
endif()
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DSKEIN_DEVELOPER_MODE=OFF
    -DSKEIN_COMPILED=OFF
    -DSKEIN_MODULE=OFF
    "-DSKEIN_TORCH=${skein_torch}"
    "-DSKEIN_IMAGES=${skein_images}"
    "-DSKEIN_ETCD=${skein_etcd}"
    "-DSKEIN_HTTP=${skein_http}"
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/skein)
# The licence lies where vcpkg wants it.
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/licenses")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
