# frozen_string_literal: true

require 'json'
require 'puppet'
require 'securerandom'
require 'socket'

module PuppetX; end
module PuppetX::Again; end
module PuppetX::Again::Events; end

# The file in which a run leaves its lines for the service, and the doorbell beside it. The service reads it; again-fleet executor renames it to
# `NAME@told` when all of it is told, and removes it at its next start after an hour.
class PuppetX::Again::Events::Spool
  # What a run may leave, all runs together, and how many they may be. What is kept of the first is for the last line. No line may be
  # longer than the service reads (`LONGEST_READ` of fleet/src/spool.rs).
  def self.bounds
    { run: 16 << 20, kept: 256 << 10, line: 256 << 10, together: 64 << 20, files: 100, waiting: 1 << 20 }
  end

  # How many lines were to be written when the directory was there, and were not.
  attr_reader :unwritten

  # The block is asked for the first line, and told how many older runs had to go.
  def initialize(directory, socket, &first)
    @directory = directory
    @socket = socket
    @first = first
    @bounds = self.class.bounds
    @size = 0
    @waiting = []
    @unwritten = 0
  end

  # One write. Whether the line is in the file, or will be: the directory may be made in this very run.
  def add(line, last: false)
    text = "#{line}\n"
    return false if text.bytesize > @bounds[:line]
    return false unless last || @size + text.bytesize <= @bounds[:run] - @bounds[:kept]

    create unless @file
    written = @file ? write(text) : wait(text)
    ring(last) if @file
    written
  end

  # Ends it. Others may have inherited the descriptor, and the lock is to be gone.
  def close
    unless @file || @waiting.empty?
      warn(@broken || "there is no #{@directory}")
    end
    @file&.flock(File::LOCK_UN)
    [@file, @bell].each { |open| open.close if open }
  rescue SystemCallError, IOError => e
    warn(e.message)
  end

  # Says once what went wrong.
  def warn(what)
    Puppet.warning("not all events of this run are told: #{what}") unless @warned
    @warned = true
  end

  private

  def wait(text)
    return false if @broken || @size + text.bytesize > @bounds[:waiting]

    @size += text.bytesize
    @waiting << text
    true
  end

  def create
    return if @broken

    name = "#{Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond)}-#{SecureRandom.hex(16)}"
    lost = make_room
    # Under a name that the service does not know, until it is locked: a file without a lock is that of a run which is over.
    new = "new-#{name}"
    @file = File.open("#{@directory}/#{new}", File::WRONLY | File::CREAT | File::EXCL | File::NOFOLLOW | File::APPEND, 0o640)
    @file.flock(File::LOCK_EX | File::LOCK_NB)
    # Whatever the umask is.
    @file.chmod(0o640)
    @size = 0
    raise IOError, 'there is no room for the first line' unless write("#{@first.call(lost)}\n")

    File.rename("#{@directory}/#{new}", "#{@directory}/#{name}")

    @unwritten = @waiting.count { |text| !write(text) }
    @waiting = []
  rescue Errno::ENOENT
    nil
  rescue SystemCallError, IOError => e
    give_up(new, e.message)
  end

  # A file without its first line is none.
  def give_up(name, why)
    @broken = why
    warn(why)
    return unless @file

    remove("#{@directory}/#{name}")
    @file.close
    @file = nil
  end

  # Removes files until there is room for one more: those that are told first, and the oldest of each. How many were not marked as told, with
  # those that had to go for them: at most so many are lost.
  def make_room
    files = Dir.children(@directory).grep(%r{\A(new-)?\d+-\h{32}(@told)?\z})
    files = files.sort_by { |name| [told?(name) ? 0 : 1, name.delete_prefix('new-').to_i, name] }
    sizes = files.map { |name| size("#{@directory}/#{name}") }
    together = sizes.sum
    gone = lost = 0
    while gone < files.size && (files.size - gone >= @bounds[:files] || together > @bounds[:together])
      path = "#{@directory}/#{files[gone]}"
      before = told?(path) ? 0 : 1 + lost_before(path)
      lost += before if remove(path)
      together -= sizes[gone]
      gone += 1
    end
    lost
  end

  def told?(name)
    name.end_with?('@told')
  end

  # What the first line of a file says.
  def lost_before(path)
    line = File.open(path, File::RDONLY | File::NOFOLLOW | File::NONBLOCK) { |file| file.gets("\n", 1 << 16) if file.stat.file? }
    lost = JSON.parse(line).dig('begun', 'lost')
    (lost.is_a?(Integer) && lost.between?(0, 1 << 32)) ? lost : 0
  rescue StandardError
    0
  end

  # again-fleet executor may have removed or renamed it meanwhile.
  def size(path)
    File.lstat(path).size
  rescue SystemCallError
    0
  end

  # Whether it was there.
  def remove(path)
    File.unlink(path)
  rescue SystemCallError => e
    Puppet.debug("events: #{e.message}")
    false
  end

  # A line is there as a whole or not at all.
  def write(text)
    written = @file.syswrite(text)
    raise IOError, 'there is no room for a whole line' if written < text.bytesize

    @size += written
    true
  rescue SystemCallError, IOError => e
    warn(e.message)
    @file.truncate(@size)
    false
  end

  # Never waited for: whoever does not hear it looks from time to time. Who was not there at the first event may be at the last.
  def ring(last)
    now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :millisecond)
    # Whoever has heard it looks again after twice as long (`PACE` of fleet/src/service/publisher.rs).
    return if !last && @rung && now - @rung < 10

    @rung = now
    @bell = nil if last && !@bell
    @bell = connect if @bell.nil?
    @bell.sendmsg_nonblock("\n", exception: false) if @bell
  rescue SystemCallError, IOError => e
    Puppet.debug("events: nobody hears the bell: #{e.message}")
    @bell.close if @bell
    @bell = false
  end

  def connect
    socket = Socket.new(:UNIX, :DGRAM)
    socket.connect(Socket.pack_sockaddr_un(@socket))
    socket
  rescue SystemCallError, ArgumentError => e
    Puppet.debug("events: nobody hears the bell: #{e.message}")
    socket&.close
    false
  end
end
