"""unexport.py LIBRARY FOLDER...: takes functions that no other library can need out of what a library exports.

The compiler puts every inline function and every instance of a template into each library that calls it, as a weak
symbol (System V ABI, "Symbol Table"; Itanium C++ ABI, 5.2). TensorFlow's largest library exports each of them: a tenth
of its bytes is their names, and the loader looks all of them up whenever TensorFlow is imported. Here the library is
bound to its own, as a linker binds hidden symbols, and the names go; names that a library in one of the folders has,
too, stay. Objects stay, since some are told apart by their addresses, and so do functions that are defined once.

The file's first sections (symbols, names, relocations) are written anew, shorter. Nothing after them changes its
address in memory: the first segment becomes two, with a hole between. A library that is laid out otherwise is left as
it is.
"""

import collections
import contextlib
import itertools
import os
import shutil
import struct
import sys
from pathlib import Path

MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
ENTRY = struct.Struct("<QQ")

Header = collections.namedtuple(
    "Header",
    "ident type machine version entry segments_at sections_at flags size segment_size segments section_size sections "
    "section_names",
)
Segment = collections.namedtuple("Segment", "type flags offset address physical file_size memory_size align")
Section = collections.namedtuple("Section", "name type flags address offset size link info align entry_size")
Symbol = collections.namedtuple("Symbol", "name info other section value size")

# What each section that may move is for (elf.h).
SYMBOLS, STRINGS, RELOCATIONS, NOTE, HASH, DYNAMIC = 11, 3, 4, 7, 5, 6
GNU_HASH, VERSIONS, DEFINED, NEEDED = 0x6FFFFFF6, 0x6FFFFFFF, 0x6FFFFFFD, 0x6FFFFFFE
MOVABLE = {SYMBOLS, STRINGS, RELOCATIONS, NOTE, GNU_HASH, VERSIONS, DEFINED, NEEDED}
# Entries of the dynamic section: addresses of such sections, places of names, and counts.
ADDRESSES = {5, 6, 7, 23, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE}
NAMES = {1, 14, 15, 29, 0x7FFFFFFD, 0x7FFFFFFF}
STRINGS_SIZE, RELATIVE_COUNT = 10, 0x6FFFFFF9
LOAD, TABLE_ITSELF = 1, 6
WEAK_FUNCTION, LOCAL_FUNCTION, HIDDEN = 0x22, 0x02, 2
# Relocations by machine: relative, absolute, through the global offset table, of a call (psABI of each).
TYPES = {62: (8, 1, 6, 7), 183: (1027, 257, 1025, 1026)}
# Replaced by the allocator where that has them: a program must have one of each.
OPERATORS = (b"_Znw", b"_Zna", b"_Zdl", b"_Zda")


class OtherLayoutError(Exception):
    """The library is not laid out as this program reads it."""


# What reading a library can raise: it is of another kind, or damaged.
UNREADABLE = (OtherLayoutError, struct.error, ValueError, LookupError)


def expect(condition, what):
    if not condition:
        raise OtherLayoutError(what)


def name_at(strings, place):
    return strings[place : strings.index(b"\0", place)]


class Library:
    """A shared library's tables, and the bytes of those of its sections that may move."""

    def __init__(self, path):
        self.path = path
        with path.open("rb") as file:
            start = file.read(HEADER.size)
            expect(start.startswith(MAGIC) and len(start) == HEADER.size, "no 64-bit library")
            self.header = Header._make(HEADER.unpack(start))
            self.segments = list(map(Segment._make, self._table(file, SEGMENT, "segments_at", self.header.segments)))
            self.sections = list(map(Section._make, self._table(file, SECTION, "sections_at", self.header.sections)))
            self.bytes = {}
            for section in self.sections:
                if section.flags & 2 and section.type in MOVABLE | {DYNAMIC}:
                    file.seek(section.offset)
                    self.bytes[section] = file.read(section.size)

    def _table(self, file, row, place, count):
        file.seek(getattr(self.header, place))
        return row.iter_unpack(file.read(row.size * count))

    def one(self, kind):
        found = [section for section in self.bytes if section.type == kind]
        expect(len(found) == 1, f"{len(found)} sections of type {kind:#x}")
        return found[0]

    def strings(self):
        return self.sections[self.one(SYMBOLS).link]

    def symbols(self):
        """Each symbol with its name."""
        names = self.bytes[self.strings()]
        for row in SYMBOL.iter_unpack(self.bytes[self.one(SYMBOLS)]):
            yield Symbol(name_at(names, row[0]), *row[1:])

    def moved(self):
        """The sections between the table of segments and the first that keeps its address."""
        allocated = sorted((row for row in self.sections if row.flags & 2), key=lambda row: row.address)
        moved = list(itertools.takewhile(lambda row: row.type in MOVABLE, allocated))
        first = self.loaded()[0]
        table_ends = self.header.segments_at + SEGMENT.size * self.header.segments
        expect(self.header.segments_at == HEADER.size and not first.offset and not first.address, "another beginning")
        expect(all(row.type != HASH for row in allocated), "a hash table of the older kind")
        others = [row for row in self.bytes if row not in moved and row.type not in (NOTE, DYNAMIC)]
        expect(not others, "symbols or relocations among other sections")
        notes = sum(row.type == NOTE for row in moved)
        expect(all(row.type == NOTE for row in moved[:notes]), "notes among symbols")
        for row in moved:
            expect(table_ends <= row.offset == row.address < first.file_size, "a section at another address")
        return moved

    def kept_from(self):
        """The offset of what follows them: in the same segment, or the next one."""
        first, second = self.loaded()[:2]
        follows = max(row.offset + row.size for row in self.moved())
        kept = [row.offset for row in self.sections if row.flags & 2 and follows <= row.offset < first.file_size]
        return min(kept, default=second.offset)

    def loaded(self):
        return [row for row in self.segments if row.type == LOAD]


def hashes_of(table, names):
    """The hash of each name, out of the table of type GNU_HASH that has them; the number of its first symbol.

    A hash is 5381, then for each byte 33 times itself and the byte. The table has all of it but the last bit.
    """
    buckets, first, words, _ = struct.unpack_from("<IIII", table)
    chain = struct.unpack_from(f"<{len(names) - first}I", table, 16 + 8 * words + 4 * buckets)
    return [chain[place] & ~1 | 5381 + sum(name) & 1 for place, name in enumerate(names[first:])], first


def hash_table(hashes, first):
    """The table of type GNU_HASH for symbols that begin at number `first`, and the order that it needs.

    12 bits of the filter for each name, and four names for each bucket, as lld has it.
    """
    buckets = max(1, len(hashes) // 4)
    order = sorted(range(len(hashes)), key=lambda place: hashes[place] % buckets)
    words = 1 << max(0, (len(hashes) * 12 // 64).bit_length())
    shift = 26
    filters, starts, chain = [0] * words, [0] * buckets, []
    for value in hashes:
        filters[value // 64 % words] |= 1 << value % 64 | 1 << (value >> shift) % 64
    for number, place in enumerate(order):
        bucket = hashes[place] % buckets
        starts[bucket] = starts[bucket] or first + number
        last = number + 1 == len(order) or hashes[order[number + 1]] % buckets != bucket
        chain.append(hashes[place] & ~1 | last)
    head = struct.pack("<IIII", buckets, first, words, shift)
    return head + struct.pack(f"<{words}Q{buckets + len(chain)}I", *(filters + starts + chain)), order


class Names:
    """A table of strings under way."""

    def __init__(self, before):
        self.before = before
        self.places = {b"": 0}
        self.table = bytearray(b"\0")

    def place(self, name):
        if name not in self.places:
            self.places[name] = len(self.table)
            self.table += name + b"\0"
        return self.places[name]

    def again(self, place):
        return self.place(name_at(self.before, place))


class Shorter:
    """The sections of a library without the names of `gone`, the numbers of some of its symbols."""

    def __init__(self, library, gone):
        self.library = library
        self.symbols = list(library.symbols())
        self.names = Names(library.bytes[library.strings()])
        self.types = TYPES[library.header.machine]
        self.relocations = {
            section: list(RELOCATION.iter_unpack(content))
            for section, content in library.bytes.items()
            if section.type == RELOCATIONS
        }
        # The library's code knows the relocations of calls by their numbers. They stay, and so do their symbols: local
        # and without names, so that the loader looks for none.
        called, otherwise = self._named()
        self.gone = gone - otherwise
        self.called = called & self.gone
        self.new = {}
        self.relative = 0
        self._write_symbols()
        for section, rows in self.relocations.items():
            self._write_relocations(section, rows)
        for section in library.bytes:
            if section.type in (DEFINED, NEEDED):
                self.new[section] = self._renamed(section)
        self.dynamic = [self._dynamic(*row) for row in ENTRY.iter_unpack(library.bytes[library.one(DYNAMIC)])]
        self.new[library.strings()] = bytes(self.names.table)

    def _is_call(self, info):
        return info & 0xFFFFFFFF == self.types[3]

    def _named(self):
        """The symbols that relocations of calls name, and those that relocations of no known type do."""
        _, absolute, offset, call = self.types
        called, otherwise = set(), set()
        for rows in self.relocations.values():
            for _, info, _ in rows:
                kind = info & 0xFFFFFFFF
                if kind == call:
                    called.add(info >> 32)
                elif kind not in (absolute, offset):
                    otherwise.add(info >> 32)
        return called, otherwise

    def _write_symbols(self):
        library, symbols = self.library, self.symbols
        hashes, hashed_from = hashes_of(library.bytes[library.one(GNU_HASH)], [symbol.name for symbol in symbols])
        locals_ = library.one(SYMBOLS).info
        local = [*range(locals_), *sorted(self.called)]
        plain = [number for number in range(locals_, hashed_from) if number not in self.gone]
        hashed = [number for number in range(hashed_from, len(symbols)) if number not in self.gone]
        first = len(local) + len(plain)
        kept_hashes = [hashes[number - hashed_from] for number in hashed]
        self.new[library.one(GNU_HASH)], order = hash_table(kept_hashes, first)
        numbers = [*local, *plain, *(hashed[place] for place in order)]
        self.numbers = {old: new for new, old in enumerate(numbers)}
        self.locals = len(local)
        versions = [row[0] for row in struct.iter_unpack("<H", library.bytes[library.one(VERSIONS)])]
        kept = [0 if number in self.called else versions[number] for number in numbers]
        self.new[library.one(VERSIONS)] = struct.pack(f"<{len(kept)}H", *kept)
        self.new[library.one(SYMBOLS)] = b"".join(map(self._symbol, numbers))

    def _symbol(self, number):
        symbol = self.symbols[number]
        if number in self.called:
            symbol = symbol._replace(name=b"", info=LOCAL_FUNCTION, other=symbol.other & ~3 | HIDDEN)
        return SYMBOL.pack(*symbol._replace(name=self.names.place(symbol.name)))

    def _write_relocations(self, section, rows):
        relative, others = [], []
        for place, info, addend in rows:
            number, kind = info >> 32, info & 0xFFFFFFFF
            if number in self.gone and not self._is_call(info):
                value = self.symbols[number].value + (addend if kind == self.types[1] else 0)
                relative.append((place, self.types[0], value))
            elif kind == self.types[0]:
                relative.append((place, info, addend))
            else:
                others.append((place, self.numbers[number] << 32 | kind, addend))
        expect(not relative or not any(self._is_call(info) for _, info, _ in rows), "relocations of calls among others")
        expect(not relative or not self.relative, "two sections of relative relocations")
        self.relative += len(relative)
        self.new[section] = b"".join(RELOCATION.pack(*row) for row in [*sorted(relative), *others])

    def _renamed(self, section):
        """A section of versions, whose records are chained by the distances at their ends."""
        content = bytearray(self.library.bytes[section])
        whole, part = ("<HHHHIII", "<II") if section.type == DEFINED else ("<HHIII", "<IHHII")
        place = 0
        while True:
            row = list(struct.unpack_from(whole, content, place))
            aux = place + row[-2]
            for _ in range(row[3] if section.type == DEFINED else row[1]):
                inner = list(struct.unpack_from(part, content, aux))
                inner[-2] = self.names.again(inner[-2])
                struct.pack_into(part, content, aux, *inner)
                aux += inner[-1]
            if section.type == NEEDED:
                row[2] = self.names.again(row[2])
                struct.pack_into(whole, content, place, *row)
            if not row[-1]:
                return bytes(content)
            place += row[-1]

    def _dynamic(self, tag, value):
        if tag in NAMES:
            value = self.names.again(value)
        return tag, value


def padded(place, align):
    return -(-place // max(1, align)) * max(1, align)


class Layout:
    """Where the moved sections begin now, and by how much the rest of the file has come forward."""

    def __init__(self, library, shorter):
        self.places = {}
        self.kept_from = library.kept_from()
        # One segment more, where a hole comes into the first.
        self.split = self.kept_from < library.loaded()[0].file_size
        end = HEADER.size + SEGMENT.size * (library.header.segments + self.split)
        for section in library.moved():
            place = padded(end, section.align)
            self.places[section] = place
            end = place + len(shorter.new.get(section, library.bytes[section]))
        self.end = end
        page = max(row.align for row in library.loaded())
        self.shift = (self.kept_from - end) // page * page

    def offset(self, old):
        return old - self.shift if old >= self.kept_from else old


def segments(library, layout):
    places = {old.address: new for old, new in layout.places.items()}
    for row in library.segments:
        if row.type == LOAD and not row.offset:
            yield row._replace(file_size=layout.end, memory_size=layout.end)
            if layout.split:
                yield row._replace(
                    offset=layout.offset(layout.kept_from),
                    address=layout.kept_from,
                    physical=layout.kept_from,
                    file_size=row.file_size - layout.kept_from,
                    memory_size=row.memory_size - layout.kept_from,
                )
        elif row.type == TABLE_ITSELF:
            size = row.file_size + SEGMENT.size * layout.split
            yield row._replace(file_size=size, memory_size=size)
        elif row.address in places:
            place = places[row.address]
            yield row._replace(offset=place, address=place, physical=place)
        else:
            yield row._replace(offset=layout.offset(row.offset))


def sections(library, shorter, layout):
    for row in library.sections:
        if row not in layout.places:
            yield row._replace(offset=layout.offset(row.offset))
            continue
        place = layout.places[row]
        size = len(shorter.new.get(row, library.bytes[row]))
        info = shorter.locals if row.type == SYMBOLS else row.info
        yield row._replace(address=place, offset=place, size=size, info=info)


def dynamic(shorter, layout):
    addresses = {old.address: new for old, new in layout.places.items()}
    for tag, value in shorter.dynamic:
        if tag in ADDRESSES:
            expect(value in addresses, "a dynamic entry for a section that does not move")
            value = addresses[value]
        elif tag == STRINGS_SIZE:
            value = len(shorter.names.table)
        elif tag == RELATIVE_COUNT:
            value = shorter.relative
        yield tag, value


def write(library, shorter, layout, target):
    header = library.header
    rows = list(segments(library, layout))
    table = header._replace(sections_at=layout.offset(header.sections_at), segments=len(rows))
    entries = list(dynamic(shorter, layout))
    with library.path.open("rb") as old, target.open("wb") as new:
        old.seek(layout.kept_from)
        new.seek(layout.offset(layout.kept_from))
        shutil.copyfileobj(old, new, 1 << 20)

        def put(place, content):
            new.seek(place)
            new.write(content)

        put(0, HEADER.pack(*table) + b"".join(SEGMENT.pack(*row) for row in rows))
        for section, place in layout.places.items():
            put(place, shorter.new.get(section, library.bytes[section]))
        put(layout.offset(library.one(DYNAMIC).offset), b"".join(ENTRY.pack(*row) for row in entries))
        put(table.sections_at, b"".join(SECTION.pack(*row) for row in sections(library, shorter, layout)))


def names_in(folders, beside):
    """The names in the dynamic symbols of all libraries in the folders but `beside`, defined there or asked for."""
    names = set()
    for folder in folders:
        for path in Path(folder).rglob("*.so*"):
            if path.is_file() and not path.is_symlink() and not path.samefile(beside):
                # Some are scripts for the linker.
                with contextlib.suppress(*UNREADABLE):
                    names.update(symbol.name for symbol in Library(path).symbols())
    return names


def removable(library, taken):
    """The numbers of the functions that no other library can need."""
    return {
        number
        for number, symbol in enumerate(library.symbols())
        if symbol.info == WEAK_FUNCTION
        and symbol.section
        and symbol.name.startswith(b"_Z")
        and not symbol.name.startswith(OPERATORS)
        and symbol.name not in taken
    }


def main(path, folders):
    path = Path(path)
    try:
        library = Library(path)
        expect(library.header.machine in TYPES, "another machine")
        gone = removable(library, names_in(folders, path))
        shorter = Shorter(library, gone)
        layout = Layout(library, shorter)
        expect(shorter.gone and layout.shift > 0, "nothing to gain")
        target = path.with_name(path.name + ".new")
        write(library, shorter, layout, target)
    except UNREADABLE as error:
        print(f"tfbuild: {path.name} exports what it did: {error}")
        return
    shutil.copystat(str(path), str(target))
    os.replace(str(target), str(path))
    print(f"tfbuild: {path.name} exports {len(shorter.gone):,} functions less: {layout.shift:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
