# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::credentials' do
  let(:facts) { { 'again_fleet' => { 'paths' => { 'cert' => '/ssl/cert.pem', 'key' => '/ssl/key.pem', 'crl' => '/ssl/crl.pem' }, 'missing' => %w[key crl] } } }

  it { is_expected.to run.with_params({ 'cert' => nil, 'key' => '/own/key.pem' }, 'x').and_return('cert' => '/ssl/cert.pem', 'key' => '/own/key.pem') }
  it { is_expected.to run.with_params({ 'cert' => nil, 'key' => nil }, 'x').and_raise_error(%r{x: /ssl/key\.pem is not there: .*'again-fleet ca' makes it, .*; or set x::key}) }
  it { is_expected.to run.with_params({ 'crl' => nil }, 'x').and_raise_error(%r{x: /ssl/crl\.pem is not there: copy it from the CA; or set x::crl}) }
  it { is_expected.to run.with_params({ 'crl' => nil }, 'fleet').and_raise_error(%r{copy it from the CA, or set fleet::revocation to 'off'; or set fleet::crl}) }
  it { is_expected.to run.with_params({ 'ca' => nil }, 'x').and_raise_error(%r{x: the fact again_fleet does not tell Puppet's ca: set x::ca}) }
end
