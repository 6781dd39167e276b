# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::credentials' do
  let(:facts) { { 'again_fleet' => { 'paths' => { 'cert' => '/ssl/cert.pem', 'key' => '/ssl/key.pem', 'crl' => '/ssl/crl.pem' }, 'missing' => %w[key crl] } } }

  it { is_expected.to run.with_params(%w[cert key], { 'key' => '/own/key.pem' }, 'x').and_return('cert' => '/ssl/cert.pem', 'key' => '/own/key.pem') }
  it { is_expected.to run.with_params(%w[cert key], {}, 'x').and_raise_error(%r{x: /ssl/key\.pem is not there: .*'again-fleet ca' makes it, .*; or set key in x::certificates}) }
  it { is_expected.to run.with_params(['crl'], {}, 'x').and_raise_error(%r{x: /ssl/crl\.pem is not there: copy it from the CA; or set crl in x::certificates}) }
  it { is_expected.to run.with_params(['crl'], {}, 'fleet').and_raise_error(%r{copy it from the CA, or set revocation in fleet::certificates to 'off'; or set crl in fleet::certificates}) }
  it { is_expected.to run.with_params(['ca'], {}, 'x').and_raise_error(%r{x: the fact again_fleet does not tell Puppet's ca: set ca in x::certificates}) }
end
